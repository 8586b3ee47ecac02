"""`python -m pyspark_klamm jar` prints the path of our jar, `java` that of a Java for Spark."""

from __future__ import annotations

import argparse

from pyspark_klamm.jar import jar_path
from pyspark_klamm.java import JavaMissing, find_java


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pyspark_klamm", description=__doc__)
    parser.add_argument(
        "what",
        choices=["jar", "java"],
        help='jar: the path of the jar that completes format("klamm") and makes format("kafka") work, for '
        "spark.jars. "
        "java: the Java that Spark would run on, for JAVA_HOME",
    )
    if parser.parse_args().what == "jar":
        print(jar_path())
        return
    try:
        print(find_java().home)
    except JavaMissing as problem:
        parser.exit(1, f"{problem}\n")


if __name__ == "__main__":
    main()
