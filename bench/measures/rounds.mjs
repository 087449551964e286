/** Rounds over subjects, interleaved, so that what the machine does meanwhile happens to all of them. */

/** The shared processes of subjects, started where they are not yet. */
export async function processesOf(bench, subjects) {
  const processes = []
  for (const subject of subjects) processes.push(await bench.fleet.running(subject))
  return processes
}

/**
 * Calls `measure` for every process in every round, each round beginning with another one. Returns, by subject, lists
 * with a value of every round for each of the figures that `measure` gives.
 */
export async function inRounds(rounds, processes, measure) {
  const figures = Object.fromEntries(processes.map(({ subject }) => [subject.name, {}]))
  for (let round = 0; round < rounds; round++) {
    const start = round % processes.length
    for (const process of [...processes.slice(start), ...processes.slice(0, start)]) {
      const own = figures[process.subject.name]
      for (const [name, value] of Object.entries(await measure(process))) {
        own[name] ??= []
        own[name].push(value)
      }
    }
  }
  return figures
}
