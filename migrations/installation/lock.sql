-- Keeps services from writing until the end of the transaction: every move writes a row of history.
LOCK TABLE pawl.transitions, pawl.stock_movements IN ACCESS EXCLUSIVE MODE
