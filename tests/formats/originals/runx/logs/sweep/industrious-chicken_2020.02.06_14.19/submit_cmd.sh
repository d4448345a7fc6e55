cd /home/logs/sweep/industrious-chicken_2020.02.06_14.19/code; PYTHONPATH=  python train.py --lr 0.01 --solver adam --logdir /home/logs/sweep/industrious-chicken_2020.02.06_14.19 
