"""A program for the launcher: it trains the job that its argument describes as JSON."""

import json
import sys

from jobs import job_from_settings  # beside this file, whose folder Python looks into

from parascale.train.loop import train

if __name__ == "__main__":
    train(job_from_settings(json.loads(sys.argv[1])))
