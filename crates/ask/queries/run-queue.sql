-- Which tasks could run, but waited for a CPU, as their system calls saw it. In nanoseconds of the
-- guest's clock.
-- :top = 20  How many tasks
SELECT task, pid, count(*) AS calls, sum(waiting) AS waiting, max(waiting) AS longest
FROM services
WHERE kind = 'system call' AND waiting > 0
GROUP BY task, pid
ORDER BY waiting DESC
LIMIT :top
