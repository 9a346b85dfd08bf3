-- Functions by their own instructions, with how often they were called and what they cost with
-- the functions that they called.
-- :top = 20  How many functions
SELECT function, count(*) AS calls, sum(own) AS own, sum(inclusive) AS inclusive,
       round(avg(inclusive), 1) AS each
FROM calls
GROUP BY function
ORDER BY own DESC
LIMIT :top
