-- +goose Up
-- What an undo says is to be taken back, by the provider's own name for it. The first one
-- fixes it for all: their bodies must be the same.
ALTER TABLE step_attempts ADD COLUMN named text;

-- +goose Down
ALTER TABLE step_attempts DROP COLUMN named;
