"""The options of the data source: definitions, parsing and parsed values.

`table` defines all options, with the value types in `types`. `values` contains the parsed options,
which all other packages use. `offsets_json` parses and formats partitions and offsets in Spark's
JSON format. `names` suggests corrections for misspelled option names. `raw_options` gives typed
access to the options of one query. `parse` converts the options of a query to the classes in
`values`. Only `parse` imports modules of `client`.
"""
