# One image a service: `docker build --build-arg SERVICE=matcher .`; `--target devstack` holds the development tools.
ARG PYTHON=3.11.14-slim-bookworm

FROM python:${PYTHON} AS packages
RUN python -m venv /opt/venv
COPY requirements.lock .
RUN /opt/venv/bin/pip install --no-cache-dir --require-hashes -r requirements.lock

FROM python:${PYTHON} AS relay
RUN useradd --uid 10001 --no-create-home relay && install -d -o relay /state
COPY --from=packages /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
COPY db/migrations db/migrations
COPY schemas schemas
COPY libs/relay_common/relay_common libs/relay_common/relay_common
USER 10001

# The Access stand-in, the gateway and the one-shot jobs of docker-compose.yml. Never in production.
FROM relay AS devstack
COPY devstack/relay_devstack devstack/relay_devstack
ENV PYTHONPATH=/app/libs/relay_common:/app/devstack

FROM relay AS service
ARG SERVICE
COPY services/${SERVICE}/relay_${SERVICE} services/${SERVICE}/relay_${SERVICE}
ENV SERVICE=${SERVICE} PYTHONPATH=/app/libs/relay_common:/app/services/${SERVICE}
EXPOSE 8080 9090
CMD ["sh", "-c", "exec python -m relay_${SERVICE}"]
