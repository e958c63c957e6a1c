-- +goose Up

-- What the file of each applied migration was, so that a program in which it is another one is
-- refused: goose knows a migration by its number alone. `pawl migrate up` and `pawl serve`
-- write it after they have migrated. sha256 is that of the whole file, in hexadecimal digits.
CREATE TABLE pawl.migration_checksums (
  version     bigint PRIMARY KEY,
  sha256      text NOT NULL CHECK (sha256 ~ '^[0-9a-f]{64}$'),
  recorded_at timestamptz NOT NULL DEFAULT now()
);

-- +goose Down
DROP TABLE pawl.migration_checksums;
