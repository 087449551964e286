/** Loaded before Governor: an OpenTelemetry SDK that records every span and sends none. */
import { BatchSpanProcessor, NodeTracerProvider } from '@opentelemetry/sdk-trace-node'

const SUCCESS = 0
const exporter = {
  export: (_spans, done) => done({ code: SUCCESS }),
  forceFlush: async () => undefined,
  shutdown: async () => undefined,
}
new NodeTracerProvider({ spanProcessors: [new BatchSpanProcessor(exporter)] }).register()
