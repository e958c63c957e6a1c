-- The prefixes of the roles that were made for this database, as far as this role may grant as their owner, and whether the service's lacks
-- rights on a table. Whose they are says the table of goose, which no migration removes.
SELECT left(s.rolname, -6) AS prefix, EXISTS (
  SELECT FROM pg_class AS c WHERE c.relnamespace::regnamespace::text IN ('pawl', 'books') AND c.relkind IN ('r', 'v')
    AND (c.relowner <> o.oid OR NOT has_table_privilege(s.oid, c.oid, 'SELECT'))) AS lack
FROM pg_class AS g
CROSS JOIN LATERAL aclexplode(g.relacl) AS a
JOIN pg_roles AS s ON s.oid = a.grantee AND s.rolname LIKE '%\_serve'
JOIN pg_roles AS o ON o.oid = g.relowner AND o.rolname = left(s.rolname, -6) || '_owner'
WHERE g.relnamespace = 'public'::regnamespace AND g.relname = 'goose_db_version' AND a.privilege_type = 'SELECT' AND pg_has_role(o.oid, 'USAGE')
