"""The user's options: the table of them, parsing, and the parsed values.

`table`: every option as data, with the types of `types`. `values`: the frozen results, which all
other packages use. `offsets_json`: Spark's JSON of partitions and offsets. `names`: suggestions for
misspelt options. `parse`: from text to values; it alone is above `client`. `page`: docs/options.md.
"""
