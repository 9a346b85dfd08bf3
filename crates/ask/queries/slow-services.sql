-- The slowest invocations of a kind of service, in nanoseconds of the guest's clock.
-- :kind = system call  The kind of service
-- :top = 20  How many invocations
SELECT service, task, pid, cpu, start, latency, ran, blocked, waiting, instructions
FROM services
WHERE kind = :kind
ORDER BY latency DESC
LIMIT :top
