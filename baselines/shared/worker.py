"""The process of one contestant: creates an object and calls its methods as commanded on standard input.

Started by `baselines.shared.rounds` as `python -m baselines.shared.worker MODULE:CLASS ARGUMENTS FOLDER`.
Commands and replies are JSON, one per line: `{"do": "time", "seconds": 0.2}` calls `time(seconds=0.2)`.
Between commands the process waits in a blocking read and uses no processor, so that several can alternate.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any

from baselines.errors import one_line


def main() -> None:
    """Create the object named on the command line, then serve commands."""
    target, arguments, folder = sys.argv[1:]
    # Replies use the real standard output exclusively; output of libraries goes to the log.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    contestant: Any = None
    for line in sys.stdin:
        try:
            if contestant is None:
                module, _, name = target.partition(":")
                make = getattr(importlib.import_module(module), name)
                contestant = make(folder=folder, **json.loads(arguments))
            command = json.loads(line)
            reply = {"result": getattr(contestant, command.pop("do"))(**command)}
        except Exception as error:  # noqa: BLE001  # an exception is the contestant's result: go on
            traceback.print_exc()
            reply = {"error": one_line(error, 500)}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
