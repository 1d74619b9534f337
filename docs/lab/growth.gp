# The plots of docs/lab/growth.md: make plot-growth. The figures are those of the last
# make bench-growth, in growth.dat.
set terminal svg size 760,380 font "sans,13" background "white"
set datafile separator "\t"
set style data linespoints
set grid ytics lc rgb "#dddddd"
set yrange [0:*]
set border 3
set tics nomirror

# A variant's medians of one part and case, by number: number, median, lowest, highest.
of(part, what, variant) = sprintf("< awk -F'\\t' '$1 == \"%s\" && $3 == \"%s\" && $4 == \"%s\" {print $5 \"\\t\" $6 \"\\t\" $7 \"\\t\" $8}' docs/lab/growth.dat", part, what, variant)

set output "docs/lab/growth-peers.svg"
set multiplot layout 1,3
set xlabel "peers"
set xrange [0:*]
set xtics 20
set key outside above
set title "until a hub has all, ms"
plot of("up", "peers of a hub, until all are up", "trunkline") using 1:2:3:4 with yerrorlines lw 2 pt 7 title "Trunkline", \
     of("up", "peers of a hub, until all are up", "stock") using 1:2:3:4 with yerrorlines lw 2 pt 9 title "without"
set title "until each has all, s"
plot of("up", "peers of each other, until all are up", "trunkline") using 1:($2/1e3):($3/1e3):($4/1e3) with yerrorlines lw 2 pt 7 title "Trunkline", \
     of("up", "peers of each other, until all are up", "stock") using 1:($2/1e3):($3/1e3):($4/1e3) with yerrorlines lw 2 pt 9 title "without"
set title "memory for each at rest, kB"
plot of("rest", "peers, memory for each", "trunkline") using 1:2:3:4 with yerrorlines lw 2 pt 7 title "Trunkline", \
     of("rest", "peers, memory for each", "stock") using 1:2:3:4 with yerrorlines lw 2 pt 9 title "without"
unset multiplot

set output "docs/lab/growth-destinations.svg"
set key outside above
set title "Eight senders, one message to each destination in turn"
set xlabel "destinations at one peer"
set ylabel "messages a second, thousands"
set logscale x
set xrange [0.7:150000]
set xtics ("1" 1, "10" 10, "100" 100, "1,000" 1000, "10,000" 10000, "100,000" 100000)
plot of("destinations", "destinations", "trunkline") using 1:($2/1e3):($3/1e3):($4/1e3) with yerrorlines lw 2 pt 7 title "Trunkline", \
     of("destinations", "destinations", "stock") using 1:($2/1e3):($3/1e3):($4/1e3) with yerrorlines lw 2 pt 9 title "!"

# An empty mailbox is drawn as one of 100 messages.
set output "docs/lab/growth-mail.svg"
set title "A call from a process with a long mailbox"
set xlabel "messages in the caller's mailbox"
set ylabel "us of a call"
set xrange [70:1500000]
set xtics ("0" 100, "1,000" 1000, "10,000" 10000, "100,000" 100000, "1,000,000" 1000000)
plot of("mail", "call, messages in the mailbox", "trunkline") using ($1 < 100 ? 100 : $1):2:3:4 with yerrorlines lw 2 pt 7 title "trunkline:call", \
     of("mail", "call, messages in the mailbox", "stock") using ($1 < 100 ? 100 : $1):2:3:4 with yerrorlines lw 2 pt 9 title "gen\\_server:call"
