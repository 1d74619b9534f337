# Every target installs from Debian what it needs and does not find (tools/need).

BENCHES = sweep flood throughput resume call monitor erpc fanout overload isolation ring mailbox growth mnesia distance observed
# What `make real' adopts.
SYSTEMS = mnesia rabbitmq ejabberd elixir

.NOTPARALLEL:
.PHONY: help demo compare real test ct properties nemesis breaks elixir dialyzer xref compile options clean docs plot-distance plot-growth plot-sweep plot-overview $(BENCHES:%=bench-%)

help:             ## this list
	@sed -n 's/^\([a-z-]*\): .*## \(.*\)/\1|\2/p' Makefile | \
	    while IFS='|' read -r target what; do printf '  make %-17s %s\n' "$$target" "$$what"; done

demo: ## two real nodes, and what Trunkline gains between them, in under a minute
	@tools/need erlang rebar3
	@bench/run bench_demo

compare: ## the same between a node here and your own: make compare NODE=b@host COOKIE=...
	@tools/compare "$(NODE)" "$(COOKIE)"

test: ## compiler warnings, xref, Dialyzer, all suites on real nodes, and Elixir
test: dialyzer xref ct elixir

ct: ## only the suites; for some of them: make ct SUITE=test/order_SUITE; with LANES=tcp or tls: on connections
	@tools/need erlang rebar3 common_test proper wan $(if $(SUITE),,elixir tmux prometheus chromium)
	LANES=$(LANES) tools/with-epmd tools/suites $(SUITE)

properties: ## 100,000 random histories of two sessions, of each kind; another number: HISTORIES=1000000
	@tools/need erlang rebar3 common_test proper
	HISTORIES=$(or $(HISTORIES),100000) rebar3 ct --suite test/session_SUITE

nemesis: ## random faults under load: make nemesis SECONDS=600 LANES=tcp; SEED=... repeats a round
	@tools/need erlang rebar3 common_test
	LANES=$(LANES) NEMESIS_SECONDS=$(or $(SECONDS),120) SEED=$(SEED) NEMESIS=$(NEMESIS) FAULTS=$(FAULTS) \
	    tools/with-epmd rebar3 ct --suite test/nemesis_SUITE

breaks: ## connections between nodes break under load, and sessions go on: make breaks BREAKS=1000 LANES=tcp
	@tools/need erlang rebar3 common_test wan
	LANES=$(LANES) BREAKS=$(or $(BREAKS),100) SEED=$(SEED) NEMESIS=$(NEMESIS) FAULTS=$(FAULTS) \
	    tools/with-epmd rebar3 ct --suite test/nemesis_SUITE --case breaks

elixir: ## only the Mix projects in elixir/: Elixir's servers, and Phoenix.PubSub; and the pages' Elixir
	@tools/need erlang rebar3 elixir common_test proper
	cd elixir && LC_ALL=C.UTF-8 MIX_HOME="$$PWD/_build/home" ../tools/with-epmd mix test --warnings-as-errors
	cd elixir/trunkline_pubsub && LC_ALL=C.UTF-8 MIX_HOME="$${PWD%/*}/_build/home" \
	    ../../tools/with-epmd mix test --warnings-as-errors
	tools/with-epmd rebar3 ct --suite test/guides_SUITE --case elixir_blocks

dialyzer: ## only the types
	@tools/need erlang rebar3 dialyzer
	rebar3 dialyzer

xref: ## only the compiler's warnings, and calls of functions that are not there
	@tools/need erlang rebar3
	rebar3 as strict xref

compile: ## the application, in _build/default/lib/trunkline
	@tools/need erlang rebar3
	rebar3 compile

options: ## the options in docs/operate/configuration.md, from src/trunkline_options.erl
	@tools/need erlang rebar3
	rebar3 compile
	ERL_LIBS=_build/default/lib tools/options docs/operate/configuration.md

bench-sweep: ## every size, number of senders and kind of request, half an hour; SHORT=1: the corners, three minutes
bench-flood: ## experiment 1: 200,000 processes ping another node
bench-throughput: ## messages a second, one way
bench-resume: ## the same with sessions that outlive their connection, and without
bench-call: ## calls a second, and how long they take
bench-monitor: ## 100,000 monitors of processes on another node, set and fired
bench-erpc: ## remote procedure calls a second, and how long they take
bench-fanout: ## one message to 10,000 processes
bench-overload: ## a flood to a node that stands still for 5 s
bench-isolation: ## messages of 10 MB, and pings beside them
bench-ring: ## experiment 3: messages of 10 MB around a ring of six nodes
bench-mailbox: ## experiment 4: too much mail, and what an inbox costs and saves
bench-mnesia: ## a table of mnesia at two nodes, as it is and adopted; and nodes that are killed
bench-observed: ## what it costs when metrics, the page, top and telemetry all look on
bench-growth: ## peers, destinations, mailboxes, lanes, sessions: what grows; PEERS="2 10" ONLY="rest flap"

bench-distance: ## Trunkline and `!' over an emulated wide-area link; as root, forty minutes

real: ## mnesia, Debian's RabbitMQ and ejabberd, Elixir: two nodes, as they are and adopted; ROUNDS=3 SECONDS=10 SYSTEMS=elixir
	@tools/need erlang rebar3 $(filter-out mnesia,$(SYSTEMS))
	@for system in $(SYSTEMS); do \
	    tools/with-epmd bench/real/run $$system $(or $(ROUNDS),3) $(or $(SECONDS),10) || exit 1; \
	done

# ROUNDS=5 and SECONDS=0.7 (of one measurement) are the defaults.
$(BENCHES:%=bench-%):
	@tools/need erlang rebar3 $(if $(filter bench-distance,$@),wan)
	@bench/run bench_$(@:bench-%=%)

plot-overview: ## the picture of the README, from docs/lab/overview.dat
	@tools/need gnuplot
	gnuplot docs/lab/overview.gp

plot-distance: ## the plots of docs/lab/distance.md, from the figures of the last bench-distance
	@tools/need gnuplot
	cp _build/distance.dat docs/lab/distance.dat
	gnuplot docs/lab/distance.gp

plot-growth: ## the plots of docs/lab/growth.md, from the figures of the last bench-growth
	@tools/need gnuplot
	cp _build/growth.dat docs/lab/growth.dat
	gnuplot docs/lab/growth.gp

plot-sweep: ## the picture of the whole field, from the last bench-sweep
	cp _build/sweep.svg docs/lab/sweep.svg

docs: ## README and the pages of docs/ as HTML, in _build/docs
	@tools/need mkdocs
	@tools/docs

clean: ## removes what was built
	rm -rf _build elixir/_build
