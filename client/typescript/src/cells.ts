import { Pawl, type PawlOptions } from "./pawl.js";

/**
 * The clients of the cells that share the orders of one shop. What is not about one order, such as a list, the stock or
 * the events, each cell has for itself.
 */
export class PawlCells {
  /** One client for each cell, the first cell first. */
  readonly all: readonly Pawl[];

  /**
   * Takes the URLs of all cells, in their order. Their number is a power of two, up to 256. If each cell has a token of its
   * own, pass a client for each instead.
   */
  constructor(cells: readonly (string | URL | Pawl)[], options: PawlOptions = {}) {
    if (cells.length === 0 || cells.length > 256 || (cells.length & (cells.length - 1)) !== 0) throw new RangeError("the number of cells must be a power of two up to 256");
    this.all = cells.map((cell) => (cell instanceof Pawl ? cell : new Pawl(cell, options)));
  }

  /** Returns the client of the cell that an order belongs to. Other cells refuse the order with other_cell. */
  async for(orderId: string): Promise<Pawl> {
    const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(orderId)));
    return this.all[Math.floor((hash[0]! * this.all.length) / 256)]!;
  }
}
