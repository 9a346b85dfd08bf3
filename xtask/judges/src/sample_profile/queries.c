/* Runs statements of SQL on a database in memory: argument 1 is the number of rows. */
#include "sqlite3.h"
#include <stdio.h>
#include <stdlib.h>

static sqlite3 *db;
static int sum;
static unsigned seed = 1;

static int row(void *unused, int columns, char **values, char **names)
{
	(void)unused;
	(void)names;
	for (int i = 0; i < columns; i++)
		if (values[i])
			sum += values[i][0];
	return 0;
}

static void run(const char *statement)
{
	char *error = NULL;

	if (sqlite3_exec(db, statement, row, NULL, &error)) {
		fprintf(stderr, "%s: %s\n", statement, error);
		exit(1);
	}
}

static unsigned below(unsigned limit)
{
	seed = seed * 1103515245 + 12345;
	return (seed >> 8) % limit;
}

int main(int count, char **arguments)
{
	int rows = count > 1 ? atoi(arguments[1]) : 1000;
	char text[200];

	if (sqlite3_open(":memory:", &db))
		return 1;
	run("create table t(a integer primary key, b int, c text); create index tb on t(b);"
	    "create table u(x int, y text); begin");
	for (int i = 0; i < rows; i++) {
		snprintf(text, sizeof(text), "insert into t values(%d, %u, 'row %u of %u')", i,
			 below(1000), below(1 << 20), below(1 << 12));
		run(text);
	}
	run("commit");
	for (int i = 0; i < rows / 4; i++) {
		unsigned from = below(1000);

		snprintf(text, sizeof(text),
			 "select count(*), max(c) from t where b between %u and %u", from,
			 from + 3);
		run(text);
	}
	run("insert into u select b, c from t where c like '%1%' order by c desc");
	run("select x, count(*), min(y) from u group by x having count(*) > 2 order by 2");
	for (int i = 0; i < rows / 2; i++) {
		snprintf(text, sizeof(text), "update t set b = b + 1, c = c || 'x' where a = %u",
			 below(rows));
		run(text);
	}
	run("select t.a, u.y from t join u on u.x = t.b where t.a % 7 = 3 order by u.y limit 500");
	for (int i = 0; i < rows / 4; i++) {
		snprintf(text, sizeof(text), "delete from t where a = %u", below(rows));
		run(text);
	}
	run("with recursive f(x) as (select 1 union all select x + 1 from f where x < 3000)"
	    " select sum(x * x % 7) from f");
	printf("%d\n", sum);
	return 0;
}
