-- Makes the database a separate installation, with its own keys at providers, and removes what leads to the receivers of the
-- original. Policies of the original make no calls, because its providers know the orders under other keys.
DO $$
DECLARE
  original uuid;
BEGIN
  SELECT i.id FROM pawl.installation AS i INTO original;
  ALTER TABLE pawl.installation DISABLE TRIGGER kept;
  UPDATE pawl.installation AS i SET id = gen_random_uuid(), callback_secret = DEFAULT, name = NULL;
  ALTER TABLE pawl.installation ENABLE TRIGGER kept;
  ALTER TABLE pawl.policies DISABLE TRIGGER immutable;
  UPDATE pawl.policies AS p SET copied_from = original WHERE p.copied_from IS NULL;
  ALTER TABLE pawl.policies ENABLE TRIGGER immutable;
  -- The secret, too: if an endpoint is enabled by mistake, its receiver rejects the deliveries.
  UPDATE pawl.webhook_endpoints AS e SET state = 'disabled', disabled_at = coalesce(e.disabled_at, now()),
    disabled_reason = coalesce(e.disabled_reason, 'the database is a copy'), previous_secret = NULL, previous_secret_until = NULL,
    secret = 'whsec_' || encode(decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'), 'base64'),
    owner = NULL, due_at = now(), fence = e.fence + 1, seq = e.seq + 1, version = e.version + 1
  WHERE e.state <> 'deleted';
  UPDATE pawl.tokens AS t SET revoked_at = now() WHERE t.revoked_at IS NULL;
  UPDATE pawl.sessions AS s SET expires_at = now() WHERE s.expires_at > now();
END $$
