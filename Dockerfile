# elmo-fast serve, with the bundled model:
#   docker build -t elmo-fast .
#   docker run --rm -p 127.0.0.1:8000:8000 elmo-fast
# docs/serving.md has the rest: other models, keys.

FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(echo /wheels/*.whl)[serve,remote]" \
    && useradd --create-home --uid 10001 elmo
USER elmo
WORKDIR /home/elmo
# Models that are fetched by name; a volume here keeps them.
ENV ELMO_FAST_CACHE=/home/elmo/models
RUN mkdir models
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
# Flags after the image's name come behind these.
ENTRYPOINT ["elmo-fast", "serve", "--host", "0.0.0.0"]
