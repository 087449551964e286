/** Shorter properties, without a search for the smallest failing input: that a test fails is enough here. */
import fc from 'fast-check'

fc.configureGlobal({ numRuns: 30, endOnFailure: true })
