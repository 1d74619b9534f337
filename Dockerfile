# For contributors whose machine has no Debian:
#
#     docker build -t trunkline .
#     docker run --rm --init trunkline make demo
#     docker run --rm --init trunkline
#
# The last one runs all tests, but for those that emulate a wide-area link. They need more rights:
# docker run --rm --init --privileged trunkline. With --build-arg DEBIAN=trixie it is another Debian.
ARG DEBIAN=bookworm
FROM debian:${DEBIAN}-slim

# What the targets of the makefile would install one by one.
COPY tools/need /tmp/need
RUN apt-get update \
    && apt-get install -y --no-install-recommends make \
    && /tmp/need erlang rebar3 common_test proper wan dialyzer elixir jq tmux

WORKDIR /trunkline
COPY . .
CMD ["make", "test"]
