"""The main file of a driver that spark-submit starts. `klamm pipeline submit` copies it: spark-submit runs
files, not modules.

    spark-submit … klamm_main.py pipeline run --project FOLDER --master MASTER
"""

from __future__ import annotations

from klamm.cli.main import main

if __name__ == "__main__":
    main()
