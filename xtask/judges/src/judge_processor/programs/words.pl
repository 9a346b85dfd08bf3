# Counts words, and sorts them by their number.
my (%count, $letters);
open(my $text, '<', '/guest/small') or die "small: $!";
while (my $line = <$text>) {
    for my $word (split ' ', $line) {
        $count{$word}++;
        $letters += () = $word =~ /[aeiou]/g;
    }
}
my @words = sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count;
print "$words[0] $count{$words[0]} $letters\n";
