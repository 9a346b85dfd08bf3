# Writes a C file of `functions` functions.
BEGIN {
    print "extern int table[256];"
    for (i = 0; i < functions; i++) {
        printf "int f%d(int a, int b)\n{\n\tint sum = %d;\n\n", i, i
        printf "\tfor (int i = 0; i < a; i++) {\n"
        printf "\t\tif (i %% %d == b)\n\t\t\tsum += table[i & 255] * %d;\n", i % 7 + 2, i % 13 + 1
        printf "\t\telse\n\t\t\tsum ^= (b << %d) - i;\n\t}\n", i % 5 + 1
        printf "\tswitch (sum & 7) {\n"
        for (c = 0; c < 6; c++) printf "\tcase %d: sum += b * %d; break;\n", c, i + c * 3
        printf "\tdefault: sum -= a;\n\t}\n"
        if (i > 0) printf "\treturn sum + f%d(b, a / 2);\n}\n\n", i - 1
        else print "\treturn sum;\n}\n"
    }
}
