-- Whether positions of events are those of another cluster's transactions: the database was restored into this one.
SELECT r.system_identifier <> c.system_identifier FROM pawl.event_relay AS r, pg_control_system() AS c WHERE r.system_identifier IS NOT NULL
