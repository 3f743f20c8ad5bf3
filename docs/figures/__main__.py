"""``python docs/figures``: draws the pictures of the documentation into docs/assets, or where it is told to."""

import sys
from pathlib import Path

import checkpoints
import event_time
import flow_control
import ways

target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "assets"
for name, draw in (checkpoints.FIGURES | event_time.FIGURES | flow_control.FIGURES | ways.FIGURES).items():
    (target / name).write_text(str(draw()))
