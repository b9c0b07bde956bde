"""Op types that stay in FP32 when a model is converted to FP16 or BF16."""

_NO_HALF_OPS = (
    # Types or kernels that neither has: as in ONNX Runtime's own list.
    *("ArrayFeatureExtractor", "Binarizer", "CastMap", "CategoryMapper", "DictVectorizer", "FeatureVectorizer"),
    *("Imputer", "LabelEncoder", "LinearClassifier", "LinearRegressor", "Normalizer", "OneHotEncoder"),
    *("SVMClassifier", "SVMRegressor", "Scaler", "TreeEnsemble", "TreeEnsembleClassifier", "ZipMap"),
    *("TreeEnsembleRegressor", "RandomUniformLike", "NonMaxSuppression", "RoiAlign", "Upsample", "Celu"),
    *("QuantizeLinear", "DequantizeLinear"),
    # Positions: FP16 counts to 2048, BF16 to 256.
    *("Range", "CumSum"),
)

FP16_BLOCKED_OPS = (
    *_NO_HALF_OPS,
    *("TopK", "Min", "Max"),
    # Squares, exponentials and long sums leave the range of FP16 first.
    *("Exp", "Pow", "Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization", "GroupNormalization"),
    *("InstanceNormalization", "LpNormalization", "MeanVarianceNormalization", "ReduceMean", "ReduceSum"),
    *("ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceLogSum", "ReduceProd"),
)

BF16_BLOCKED_OPS = (
    # Its range is that of FP32, and blocking normalisations, sums and exponentials gains nothing measurable.
    *_NO_HALF_OPS,
    # What TensorRT-RTX 1.7 takes in FP32 and refuses in BF16.
    *("ConvTranspose", "HardSwish", "LpNormalization", "LpPool", "MeanVarianceNormalization", "Mish", "Shrink"),
)

FP16_FOLLOWED_OPS = ("Add", "Sub", "Mul", "Div", "Sqrt", "Reciprocal", "Neg", "Log", "Squeeze", "Unsqueeze")
"""What stays in FP32 behind such a node: on the way from a variance to its root."""
