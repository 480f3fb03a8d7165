"""What the nightly soak runs are command lines that tfbuild takes."""

from tests.rows import each
from tests.with_engine.soak import IDS, TARGETS, TRIALS, Trial
from tfbuild.cli import VERBS, command_line


@each("trial", TRIALS)
def test_a_verb_of_the_soak_is_one(trial: Trial) -> None:
    words = trial.words.format(target=TARGETS[0], id=IDS[0], image=f"tfbuild:{IDS[0]}").split()
    ((verb, values),) = command_line.calls(words, VERBS)
    assert verb.settled(values)
