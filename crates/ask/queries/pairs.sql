-- From each call of one function to the next call of another in the same task: how many
-- instructions lie between, of all tasks, as percentiles. If the first is called again before,
-- its last call counts.
-- :from  The function at the beginning
-- :to  The function at the end
WITH steps AS (
  SELECT function, start,
         lead(function) OVER (PARTITION BY task, pid ORDER BY start) AS next_function,
         lead(start) OVER (PARTITION BY task, pid ORDER BY start) AS next_start
  FROM calls
  WHERE entered = 1 AND function IN (:from, :to)
)
SELECT count(*) AS pairs, min(next_start - start) AS least, percentile(next_start - start, 50) AS half,
       percentile(next_start - start, 90) AS p90, percentile(next_start - start, 99) AS p99,
       max(next_start - start) AS most
FROM steps
WHERE function = :from AND next_function = :to
