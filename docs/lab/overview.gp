# The picture of the README: make plot-overview. The figures are those of docs/lab/benchmarks.md.
set terminal svg size 760,250 font "sans,13" background "white"
set output "docs/lab/overview.svg"
set multiplot layout 1,3
set style data boxes
set style fill solid
set boxwidth 0.7
set border 1
unset key
unset ytics
set xtics ("OTP" 0, "Trunkline" 1) nomirror scale 0
set xrange [-0.7:1.7]
set lmargin 2
set rmargin 2

of(what) = sprintf("< awk '$1 == \"%s\" {print 0, $2, 10132122; print 1, $3, 2060210}' docs/lab/overview.dat", what)

set offsets 0, 0, graph 0.15, 0
set yrange [0:*]

set title "messages a second\n{/*0.8 eight senders, 100 bytes each}"
plot of("messages") using 1:2:3 linecolor rgb variable, \
     of("messages") using 1:2:(sprintf("%.0f,000", $2/1e3)) with labels offset 0,0.7
set title "calls a second\n{/*0.8 a hundred callers, one server}"
plot of("calls") using 1:2:3 linecolor rgb variable, \
     of("calls") using 1:2:(sprintf("%.0f,000", $2/1e3)) with labels offset 0,0.7
set title "ms for a ping beside 10 MB messages\n{/*0.8 99th percentile}"
plot of("ping") using 1:2:3 linecolor rgb variable, \
     of("ping") using 1:2:(sprintf("%.0f", $2)) with labels offset 0,0.7
unset multiplot
