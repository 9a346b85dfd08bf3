/*
 * Asks the server on loopback a number of times, and checks each answer. "stop" ends the server.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int connected(void)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_port = htons(7000),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	int connection = socket(AF_INET, SOCK_STREAM, 0);

	if (connect(connection, (struct sockaddr *)&address, sizeof(address))) {
		perror("client");
		exit(1);
	}
	return connection;
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 1;
	char text[64], expected[64];

	if (argc > 1 && !strcmp(argv[1], "stop"))
		return write(connected(), "stop", 4) != 4;
	for (int number = 1; number <= count; number++) {
		int connection = connected();
		int size = sprintf(text, "ping %d", number);

		sprintf(expected, "pong %d", number);
		if (write(connection, text, size) != size ||
		    read(connection, text, sizeof(text)) != size || memcmp(text, expected, size)) {
			fprintf(stderr, "client: wrong answer %d\n", number);
			return 1;
		}
		close(connection);
	}
	printf("%d answers\n", count);
	return 0;
}
