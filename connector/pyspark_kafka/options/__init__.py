"""The options of the data source: their table, their parsing, and the parsed values.

`table`: every option as data, with the types of `types`. `values`: the frozen results, which all
other packages use. `offsets_json`: Spark's JSON of partitions and offsets. `names`: suggestions
for misspelt options. `raw_options`: the options of one query as text, with typed access. `parse`:
from text to values; the only module here that uses `client`.
"""
