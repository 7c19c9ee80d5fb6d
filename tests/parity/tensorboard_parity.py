#!/usr/bin/env python3
"""Reads an event file of ours with the tensorboard package."""
import os
import subprocess
import sys
import tempfile

from _program import path_of

try:
    import numpy as np
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util import tensor_util
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

program = path_of("train_test")

with tempfile.TemporaryDirectory() as folder:
    environment = dict(os.environ, HALFTONE_PARITY_DIR=folder)
    result = subprocess.run([program, "--gtest_filter=EventFileParity.Write"], env=environment, capture_output=True, text=True)
    if result.returncode != 0 or "[  PASSED  ] 1 test" not in result.stdout:
        sys.exit(f"writing failed:\n{result.stdout}{result.stderr}")
    (name,) = os.listdir(folder)
    assert name.startswith("events.out.tfevents.1700000000."), name
    events = list(EventFileLoader(os.path.join(folder, name)).Load())
    assert events[0].file_version == "brain.Event:2" and events[0].wall_time == 1700000000.5, events[0]
    assert len(events) == 201, len(events)
    for step, event in enumerate(events[1:]):
        assert event.step == step * 1000003 and event.wall_time == 1700000000.5 + step, event
        values = {v.tag: float(tensor_util.make_ndarray(v.tensor)) for v in event.summary.value}
        assert values == {"loss_metrics/global_avg_loss": float(np.float32(8.0 / (step + 1))), 'mfu(%) "é漢"': -float(step)}, values
    print(f"tensorboard reads our event file: {len(events)} events equal")
