"""When weights must leave the ONNX file."""

EXTERNAL_BYTES = 1500 << 20
"""Above this the weights go beside the model: protobuf ends at 2 GiB."""
