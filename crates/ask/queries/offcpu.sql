-- In which services tasks wait: for something to happen (blocked), and for a CPU (waiting). In
-- nanoseconds of the guest's clock.
-- :top = 20  How many services
SELECT kind, service, count(*) AS calls, sum(blocked) AS blocked, sum(waiting) AS waiting
FROM services
WHERE kind <> 'idle'
GROUP BY kind, service
HAVING sum(blocked) + sum(waiting) > 0
ORDER BY sum(blocked) + sum(waiting) DESC
LIMIT :top
