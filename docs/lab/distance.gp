# The plots of docs/lab/distance.md: make plot-distance. The figures are those of the last
# make bench-distance, in distance.dat.
set terminal svg size 760,420 font "sans,13" background "white"
set style data linespoints
set key outside above
set grid ytics lc rgb "#dddddd"
set xlabel "round trip, ms"
set xtics (0, 10, 50, 100)
set yrange [0:*]
set border 3
set tics nomirror

# A variant's medians without loss, by round trip.
of(work, variant) = sprintf("< awk '$2 == 0 && $3 == \"%s\" && $4 == \"%s\" {print $1, $5, $6, $7}' docs/lab/distance.dat", work, variant)

set output "docs/lab/distance-small.svg"
set title "Small messages, one way"
set ylabel "messages a second, thousands"
plot of("small", "trunkline") using 1:($2/1e3):($3/1e3):($4/1e3) with yerrorlines lw 2 pt 7 title "Trunkline", \
     of("small", "tuned") using 1:($2/1e3):($3/1e3):($4/1e3) with yerrorlines lw 2 pt 5 title "!, delay\\_send", \
     of("small", "stock") using 1:($2/1e3):($3/1e3):($4/1e3) with yerrorlines lw 2 pt 9 title "!"

set output "docs/lab/distance-calls.svg"
set title "Calls, 10,000 outstanding"
set ylabel "calls a second, thousands"
plot of("calls10000", "trunkline") using 1:($2/1e3):($3/1e3):($4/1e3) with yerrorlines lw 2 pt 7 title "Trunkline", \
     of("calls10000", "tuned") using 1:($2/1e3):($3/1e3):($4/1e3) with yerrorlines lw 2 pt 5 title "!, delay\\_send", \
     of("calls10000", "stock") using 1:($2/1e3):($3/1e3):($4/1e3) with yerrorlines lw 2 pt 9 title "!"

set output "docs/lab/distance-large.svg"
set title "Messages of 10 MB"
set ylabel "MB a second"
plot of("large", "trunkline") using 1:2:3:4 with yerrorlines lw 2 pt 7 title "Trunkline", \
     of("large", "tuned") using 1:2:3:4 with yerrorlines lw 2 pt 5 title "!, delay\\_send", \
     of("large", "stock") using 1:2:3:4 with yerrorlines lw 2 pt 9 title "!"

# What a lost packet costs, on a logarithmic scale.
set output "docs/lab/distance-loss.svg"
set title "Small messages, packets lost"
set ylabel "messages a second, thousands"
set xlabel ""
set logscale y
set yrange [1:2000]
set style data histograms
set style histogram clustered gap 1
set style fill solid 0.8
set xtics autofreq
loss(variant) = sprintf("< awk '$2 > 0 && $3 == \"small\" && $4 == \"%s\" {print \"\\\"\" $1 \" ms, \" $2 \" %%\\\"\", $5 / 1000}' docs/lab/distance.dat", variant)
plot loss("stock") using 2:xtic(1) title "!", loss("stock_bbr") using 2 title "!, BBR by route", \
     loss("trunkline_cubic") using 2 title "Trunkline, without BBR", loss("trunkline") using 2 title "Trunkline"
