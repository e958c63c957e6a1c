-- For sqlc alone: what a statement returns that writes orders has the columns of pawl.full_orders. Such a statement ends
-- in a subquery of this name, which sqlc looks for among the tables of its default schema. Nobody runs this file.
CREATE VIEW written_orders AS SELECT * FROM pawl.full_orders;
