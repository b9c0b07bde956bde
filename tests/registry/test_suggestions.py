import pytest

from modelreg.registry.suggestions import no_active_release, say_close, say_target

SERVED = [("lenet", "production"), ("lenet", "staging"), ("vgg", "qa")]


@pytest.mark.parametrize(
    ("model", "channel", "fact", "hint"),
    [
        ("lenet", "prodction", "lenet@prodction has no active release", "Did you mean 'production'?"),
        (
            "lenet",
            "qa",
            "lenet@qa has no active release",
            "It has: production, staging; `modelreg promote lenet:",
        ),
        ("lenett", "qa", "nothing of a model 'lenett' was ever promoted", "Did you mean 'lenet'?"),
        ("bert", "qa", "nothing of a model 'bert'", "modelreg promote bert:VERSION --to qa"),
    ],
)
def test_a_channel_that_serves_nothing_is_told_from_an_unknown_model(
    model: str, channel: str, fact: str, hint: str
) -> None:
    error = no_active_release(model, channel, served=SERVED)
    assert fact in str(error)
    assert hint in error.hint()


def test_a_channel_without_a_pointer_is_not_offered_for_itself() -> None:
    error = no_active_release("lenet", "qa", served=[("lenet", "qa")])
    assert "'qa'" not in error.hint()


def test_names_that_are_far_away_are_not_offered() -> None:
    assert say_close("lenet", ["bert", "lenet"]) == ""


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("sm89", "sm_89"),
        ("89", "sm_89"),
        ("8.9", "sm_89"),
        ("sm-120", "sm_120"),
        ("compute_90a", "sm_90"),
        ("sm 86", "sm_86"),
    ],
)
def test_a_target_in_another_spelling_is_recognised(text: str, meant: str) -> None:
    assert say_target(text) == f"did you mean {meant}?"


@pytest.mark.parametrize("text", ["gpu", "native", "rtx4090", "h100", ""])
def test_of_another_word_it_is_said_what_targets_look_like(text: str) -> None:
    assert "did you mean" not in say_target(text)
    assert "sm_89" in say_target(text)
