# syntax=docker/dockerfile:1

FROM node:26-slim AS build
WORKDIR /src
COPY package.json package-lock.json .npmrc ./
COPY scripts/build.mjs scripts/fetch-types.mjs scripts/
# Without scripts: installing must not build, as the sources come later so that this layer is kept while they change.
RUN npm ci --ignore-scripts
COPY config/schema.json config/
# esbuild reads it, as that of the page extends it.
COPY tsconfig.json ./
COPY src src
# Source maps are for a clone: they are two thirds of the bundle.
RUN npm run build && find dist -name "*.map" -delete

FROM node:26-slim
LABEL org.opencontainers.image.title="Governor" \
      org.opencontainers.image.description="A reverse proxy for LLM APIs that keeps agents from running away" \
      org.opencontainers.image.licenses="MIT"
WORKDIR /app
# In a container loopback is nobody else's: Governor listens on all of its addresses, and publishing a port decides who
# reaches it. The port is set as well, so that the health check knows it whatever the configuration file says.
ENV NODE_ENV=production HOST=0.0.0.0 PORT=8787 NODE_COMPILE_CACHE=/app/compile-cache
COPY --from=build /src/dist dist
COPY package.json ./
COPY config config
# What Node compiles is kept here, so that a start need not. Nothing is written in a container: its user may not.
RUN NODE_COMPILE_CACHE=compile-cache node dist/main.js demo > /dev/null
USER node
EXPOSE 8787
STOPSIGNAL SIGTERM
# The shell asks by itself: a Node of its own every ten seconds would take more than Governor does.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
  CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/$PORT && printf 'GET /health HTTP/1.0\\r\\n\\r\\n' >&3 && grep -q '^HTTP/1.1 200 ' <&3"]
CMD ["node", "dist/main.js", "start"]
