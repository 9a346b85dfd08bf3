// LLVM's own layouts of the graphs on standard input, and LLVM's score of them and of ours.
//
// A graph:  blocks N M, or functions N M; N lines "size count"; M lines "from to count offset";
// N numbers, our order, on one line.
// An answer, on one line: for blocks, the score of LLVM's order and of ours; for functions, LLVM's
// order.

#include "llvm/Transforms/Utils/CodeLayout.h"
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

using namespace llvm::codelayout;

int main() {
  std::ios::sync_with_stdio(false);
  std::string kind;
  size_t nodes, edges;
  while (std::cin >> kind >> nodes >> edges) {
    std::vector<uint64_t> sizes(nodes), counts(nodes), offsets(edges), ours(nodes);
    std::vector<EdgeCount> arcs(edges);
    for (size_t i = 0; i < nodes; i++)
      std::cin >> sizes[i] >> counts[i];
    for (size_t i = 0; i < edges; i++)
      std::cin >> arcs[i].src >> arcs[i].dst >> arcs[i].count >> offsets[i];
    for (size_t i = 0; i < nodes; i++)
      std::cin >> ours[i];
    if (!std::cin)
      return 1;
    if (kind == "blocks") {
      std::vector<uint64_t> theirs = computeExtTspLayout(sizes, counts, arcs);
      std::printf("%.17g %.17g\n", calcExtTspScore(theirs, sizes, arcs),
                  calcExtTspScore(ours, sizes, arcs));
    } else if (kind == "functions") {
      for (uint64_t function : computeCacheDirectedLayout(sizes, counts, arcs, offsets))
        std::printf("%llu ", static_cast<unsigned long long>(function));
      std::printf("\n");
    } else {
      return 1;
    }
  }
  return std::cin.eof() ? 0 : 1;
}
