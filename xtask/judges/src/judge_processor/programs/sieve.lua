-- Counts primes, then builds and reads a table of strings.
local limit, count, composite = 60000, 0, {}
for n = 2, limit do
  if not composite[n] then
    count = count + 1
    for multiple = n * n, limit, n do composite[multiple] = true end
  end
end
local names = {}
for n = 1, 10000 do names["n" .. n % 5000] = (names["n" .. n % 5000] or 0) + n end
print(count, names.n17)
