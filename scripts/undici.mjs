// The connections of undici, which is all that Governor uses of it. Its own index brings fetch, WebSockets, caches, mocks
// and more with it, a third of the time and memory that all packages together take at start.
import api from 'undici/lib/api/index.js'
import buildConnector from 'undici/lib/core/connect.js'
import errors from 'undici/lib/core/errors.js'
import Agent from 'undici/lib/dispatcher/agent.js'
import Dispatcher from 'undici/lib/dispatcher/dispatcher.js'
import EnvHttpProxyAgent from 'undici/lib/dispatcher/env-http-proxy-agent.js'
import Pool from 'undici/lib/dispatcher/pool.js'

// As its index does: a connection through a proxy is opened by `connect`.
Object.assign(Dispatcher.prototype, api)

export { Agent, buildConnector, EnvHttpProxyAgent, errors, Pool }
