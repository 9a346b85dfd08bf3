create table t (id integer primary key, k integer, name text);
with recursive n (i) as (select 1 union all select i + 1 from n where i < 2000)
insert into t select i, (i * 7919) % 1009, 'row ' || (i * 31 % 997) from n;
create index t_k on t (k);
select k, count(*), min(name) from t group by k order by 2 desc, 1 limit 3;
select sum(a.id) from t a join t b on a.k = b.k where b.id < 200;
update t set name = upper(name) where k % 3 = 0;
select count(distinct name) from t;
