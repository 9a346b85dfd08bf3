# Counts words by their length and first letters.
{
    for (i = 1; i <= NF; i++) {
        count[substr($i, 1, 3)]++
        sum[length($i)] += i
    }
}
END { for (word in count) n += count[word]; print n, sum[4], length(count) }
