/** Tables: objects with exactly the rows that their types name. */

/** Returns the names of a table's rows, in their order. */
export function namesOf<Name extends string>(table: Readonly<Record<Name, unknown>>): readonly Name[] {
  return Object.keys(table) as Name[]
}

/** True if a table has a row of that name. */
export function isNameIn<Name extends string>(table: Readonly<Record<Name, unknown>>, text: string): text is Name {
  return Object.hasOwn(table, text)
}

/** Returns a table with a row for each name. */
export function tableBy<Name extends string, Row>(
  names: readonly Name[],
  rowOf: (name: Name) => Row,
): Record<Name, Row> {
  const table = {} as Record<Name, Row>
  for (const name of names) table[name] = rowOf(name)
  return table
}
