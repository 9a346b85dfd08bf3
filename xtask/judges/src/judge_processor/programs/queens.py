"""Places queens on a board, and counts what it did in a dictionary."""


def place(row, columns, rising, falling, size, seen):
    if row == size:
        return 1
    found = 0
    for column in range(size):
        if column in columns or row + column in rising or row - column in falling:
            continue
        seen[(row, column)] = seen.get((row, column), 0) + 1
        found += place(row + 1, columns | {column}, rising | {row + column},
                       falling | {row - column}, size, seen)
    return found


seen = {}
print(place(0, frozenset(), frozenset(), frozenset(), 8, seen), sum(seen.values()))
