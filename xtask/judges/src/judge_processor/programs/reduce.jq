[.[] | {k: (.id % 17), v: .value}] | group_by(.k)
  | map({k: .[0].k, n: length, sum: (map(.v) | add)}) | sort_by(.sum) | .[0]
