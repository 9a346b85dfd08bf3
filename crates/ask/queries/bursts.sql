-- When a function was called: calls in each stretch of the recording.
-- :function  The function
-- :stretch = 1000000  Instructions of a stretch
SELECT start / :stretch * :stretch AS start, count(*) AS calls, sum(inclusive) AS inclusive
FROM calls
WHERE function = :function
GROUP BY 1
ORDER BY 1
