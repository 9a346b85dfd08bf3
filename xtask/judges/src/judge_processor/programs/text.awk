# Writes `words` words, few of them often, and line breaks. Only operations whose results are exact
# everywhere.
BEGIN {
    state = 1
    for (i = 1; i <= words; i++) {
        state = (state * 16807) % 2147483647
        first = state % 4096
        state = (state * 16807) % 2147483647
        second = state % 4096
        printf "w%x%s", int(first * second / 1024) * 7919 % 65521, i % 12 ? " " : "\n"
    }
}
